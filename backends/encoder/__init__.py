"""The audio encoder: a reference clip in, its codes out. As an ONNX graph, in torch, or as a TensorRT engine."""
