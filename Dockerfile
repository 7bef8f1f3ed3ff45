# An image with the three packages, for a first look or for nodes of a job:
#   docker build -t adabench .
#   docker run --rm -v "$PWD:/data" adabench run -u 'ctr[rows=20000]' -b prefetch,autoada-automatic --nodes 2 -r 6
ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:${PYTHON}-slim
# The builds without CUDA are much smaller. For a GPU, build with --build-arg TORCH=https://pypi.org/simple.
ARG TORCH=https://download.pytorch.org/whl/cpu
COPY --from=build /wheels /wheels
COPY constraints.txt /wheels/
RUN pip install --no-cache-dir --extra-index-url ${TORCH} -c /wheels/constraints.txt /wheels/*.whl
WORKDIR /data
ENTRYPOINT ["adabench"]
