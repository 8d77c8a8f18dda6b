"""Everything behind ``serve.py``: find Triton, start it, watch it, end it. Standard library and tritonclient only."""
