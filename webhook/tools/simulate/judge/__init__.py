"""What pods ask of GPUs today, which GPUs nodes have, and how many are needed as shares; pure.

Sources are named in each file, by the paths of the product's own repository.
"""
