# NOT BUILT HERE: this file was written without a way to build or run it. Please report what does not work.
#
# For NVIDIA GPUs. The machine needs the driver and the NVIDIA Container Toolkit; CUDA itself comes with the packages.
#
#   docker build -t transformer-jax .
#   docker run --rm --gpus all transformer-jax doctor
#   docker run --rm --gpus all -v "$PWD/runs:/app/runs" transformer-jax quickstart
#
# For another driver: --build-arg EXTRA=cuda12.
ARG PYTHON=3.13
FROM python:${PYTHON}-slim

ARG EXTRA=cuda13
WORKDIR /source
# The versions are those of the lock; the packages of CUDA, which it does not have, follow from that of JAX.
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY transformer_jax ./transformer_jax
COPY configs ./configs
COPY experiments ./experiments
COPY examples/parts ./examples/parts
RUN pip install --no-cache-dir --constraint requirements.lock ".[${EXTRA}]"

WORKDIR /app
ENTRYPOINT ["transformer-jax"]
CMD ["doctor"]
