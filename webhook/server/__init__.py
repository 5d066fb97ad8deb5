"""The webhook's server, which answers reviews over HTTPS and assigns GPUs to pods at binding.

Reviews bypass Flask because of the measurements in webhook/decisions/03-http-server.md.
"""
