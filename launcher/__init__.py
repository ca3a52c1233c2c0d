"""The command line ``eks-fsdp``: runs, sweeps and reports, through Pulumi's Automation API and the Kubernetes API alone."""
