"""FSDP fine-tuning of large language models on Amazon EKS, from an empty account to a scaling chart.

The rooms of the repository (``spec/``, ``components/``, ...) are the subpackages of this one; the links beside
this file say which (docs/adr/0001 says why).
"""
