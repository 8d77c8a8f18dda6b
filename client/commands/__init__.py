"""The commands of ``python -m client``, one a file: ``add_parser``, and ``run`` which returns the exit code."""
