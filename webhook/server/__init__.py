"""The webhook's server: it reads reviews over HTTPS, and assigns GPUs to pods at binding.

Reviews do not pass through Flask: webhook/decisions/03-http-server.md has the measurements.
"""
