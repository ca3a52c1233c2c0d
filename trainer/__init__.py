"""The FSDP training program: ``torchrun -m eks_fsdp.trainer --config FILE [--dotted.key value ...]``.

Read `train.run` first; every other module is one step of it. Nothing here imports torch until it is needed: torch
itself loads this package in every process that uses torchrun, to find the rendezvous handler.
"""
