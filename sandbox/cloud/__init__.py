"""The stand-in `aws` provider: each resource is the real API request, validated by botocore's model, on the account."""
