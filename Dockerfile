# cropstar for batch jobs. Any Python base from 3.11 on, and any torch:
#
#   docker build -t cropstar .                                                       with CUDA, as PyPI has it
#   docker build -t cropstar:cpu --build-arg TORCH_INDEX=<index of CPU builds> .     without
#
# A change of the code rebuilds the last two layers alone, a few megabytes; torch stays.
ARG BASE=python:3.12-slim-bookworm

FROM ${BASE} AS libraries
ARG TORCH=torch==2.13.0
ARG TORCH_INDEX=
ARG EXTRAS=cluster,onnx,parcels,parquet,remote,stac
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python3 -m venv /opt/cropstar \
 && /opt/cropstar/bin/pip install ${TORCH_INDEX:+--index-url "${TORCH_INDEX}"} "${TORCH}"
WORKDIR /build
COPY pyproject.toml constraints.txt deploy/requirements.py ./
# What was tested, but for torch, which is chosen above.
RUN sed --in-place '/^torch==/d' constraints.txt \
 && /opt/cropstar/bin/python requirements.py "${EXTRAS}" > requirements.txt \
 && /opt/cropstar/bin/pip install --constraint constraints.txt --requirement requirements.txt "${TORCH}"

FROM ${BASE} AS wheel
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends g++ \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /build
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY configs configs
COPY cropstar cropstar
RUN python3 -m venv /tmp/builder \
 && /tmp/builder/bin/pip wheel --no-cache-dir --no-deps --wheel-dir /dist .

FROM ${BASE}
ARG VERSION=0.2.0
LABEL org.opencontainers.image.title="cropstar" \
      org.opencontainers.image.description="Crop maps from Sentinel-2 time series with the STAR recurrent cell" \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=libraries /opt/cropstar /opt/cropstar
COPY --from=wheel /dist /opt/dist
RUN /opt/cropstar/bin/pip install --no-cache-dir --no-deps --no-index /opt/dist/*.whl \
 && mkdir --mode=1777 /work
# Whoever runs it, whatever is read-only: caches go to /tmp, results to the folder that is mounted on /work.
ENV PATH=/opt/cropstar/bin:$PATH \
    HOME=/tmp \
    MPLCONFIGDIR=/tmp/matplotlib \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /work
USER 10001:10001
ENTRYPOINT ["cropstar"]
CMD ["--help"]
