# docker build --tag ncclean:cpu .                         without a GPU
# docker build --tag ncclean:cuda --build-arg TORCH= .     PyPI's torch, which brings CUDA's libraries;
#                                                          the host brings the driver (`--gpus all`)
FROM python:3.12-slim AS build

# As uv's --torch-backend; empty for PyPI's builds.
ARG TORCH=cpu
WORKDIR /source
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY ncclean ncclean
COPY cli cli
COPY pipelines pipelines
RUN pip install --no-cache-dir "uv>=0.9" \
 && uv venv --python /usr/local/bin/python /opt/ncclean \
 && uv pip install --no-cache --python /opt/ncclean/bin/python ${TORCH:+--torch-backend "$TORCH"} \
      --constraints constraints.txt ".[cluster,gcs,hf,judge,lance,plots,review,s3,signals]"

FROM python:3.12-slim

# KubeRay's probes call wget.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends wget \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --uid 1000 ncclean
COPY --from=build /opt/ncclean /opt/ncclean
ENV PATH=/opt/ncclean/bin:$PATH
USER 1000
WORKDIR /home/ncclean
CMD ["ncclean", "--help"]
