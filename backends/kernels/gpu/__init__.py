"""The kernels in the Triton language (OpenAI triton). Importing a module of this package imports triton.

Each module has the launchers of its namesake one folder up, with the same arguments and results; contracts stand there.
Under ``TRITON_INTERPRET=1`` they take CPU tensors, which is how they are tested without a GPU.
"""
