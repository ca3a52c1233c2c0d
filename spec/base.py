"""The base of every validated model, and errors that name the setting."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError

_NAMES_A_FIELD = re.compile(r"[a-z_][-\w.\[\]]*: ")


class SettingsError(ValueError):
    """A value that a user set is refused. The message names the setting, the value, why, and what is accepted."""


class Strict(BaseModel):
    """Frozen, refuses unknown keys at every depth, does not coerce strings into numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, use_attribute_docstrings=True)

    @classmethod
    def parse(cls, value: object, *, root: str = "", secret: Collection[str] = ()) -> Self:
        """Validate ``value``; every problem is reported in one `SettingsError`, one line each.

        ``secret``: keys at the top of ``value`` of which no error shows anything.
        """
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise SettingsError("\n".join(explain(error, cls, root, secret))) from None


def explain(error: ValidationError, model: type[BaseModel], root: str, secret: Collection[str] = ()) -> Iterable[str]:
    """One line for each problem: setting, value, reason, what is accepted.

    No value is shown below a key of ``secret``, nor in a part of the settings that has a secret in it: what stands in the
    wrong place there may be that secret.
    """
    for problem in error.errors(include_url=False):
        path = setting_path(root, problem["loc"])
        if problem["type"] == "extra_forbidden":
            known = known_keys(model, problem["loc"][:-1])
            close = difflib.get_close_matches(str(problem["loc"][-1]), known, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            yield f"{path}: unknown key. {hint}Known keys here: {', '.join(sorted(known))}."
        elif problem["type"] == "missing":
            yield f"{path}: missing, and it has no default."
        elif problem["type"] == "value_error":
            # A validator of a whole model names the field below it: "zone: 'x' has no subnet".
            message = problem["msg"].removeprefix("Value error, ")
            yield f"{path}.{message}" if problem["loc"] and _NAMES_A_FIELD.match(message) else message
        else:
            shown = problem["input"]
            hidden = isinstance(shown, (dict, list)) or holds_secret(model, problem["loc"], secret)
            given = "" if hidden else f" (got {shown!r})"
            yield f"{path}: {problem['msg']}{given}"


def setting_path(root: str, loc: Iterable[int | str]) -> str:
    """``("gpu_nodes", 0, "zone")`` as a user writes it: ``gpu_nodes[0].zone``."""
    path = root
    for part in loc:
        path = f"{path}[{part}]" if isinstance(part, int) else (f"{path}.{part}" if path else str(part))
    return path or "settings"


def holds_secret(model: type[BaseModel], loc: Iterable[int | str], secret: Collection[str] = ()) -> bool:
    """Whether ``loc`` is, or is in, a part of the settings that has a `SecretStr`, or is below a key of ``secret``."""
    path = tuple(loc)
    if path and path[0] in secret:
        return True
    parts = [_model_at(model, path[: end + 1]) for end in range(len(path))]
    return any(
        SecretStr in (field.annotation, *getattr(field.annotation, "__args__", ()))
        for part in parts
        if part
        for field in part.model_fields.values()
    )


def known_keys(model: type[BaseModel], loc: Iterable[int | str]) -> list[str]:
    """The keys that are accepted at ``loc``, by following the annotations down from ``model``."""
    found = _model_at(model, loc)
    return list(found.model_fields) if found else []


def _model_at(model: type[BaseModel], loc: Iterable[int | str]) -> type[BaseModel] | None:
    current: Any = model
    for part in loc:
        if isinstance(current, type) and issubclass(current, BaseModel) and part in current.model_fields:
            current = current.model_fields[str(part)].annotation
        while not (isinstance(current, type) and issubclass(current, BaseModel)):
            nested = [a for a in getattr(current, "__args__", ()) if a not in (str, int, type(None), Ellipsis)]
            if not nested:
                return None
            current = nested[-1]
    found: type[BaseModel] = current
    return found
