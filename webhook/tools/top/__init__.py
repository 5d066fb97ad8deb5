"""The command `top`: GPU memory that is promised to pods and used by them."""
