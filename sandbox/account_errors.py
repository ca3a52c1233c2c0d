"""Errors of the stand-in account's API."""

from __future__ import annotations

from moto.core.exceptions import ServiceException


class Refusal(ServiceException):
    """An error of the API. A class of ours: moto looks a ServiceException's service up by the module of its class."""
