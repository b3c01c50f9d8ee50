# Lockstep in a container. docs/usage.md has the commands. Not yet built: tests/unit/test_contributing.py reads the file.
ARG PYTHON=3.11
FROM python:${PYTHON}-slim

# The CPU build of PyTorch. --build-arg TORCH_INDEX=https://pypi.org/simple takes the CUDA build, several GB.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

RUN useradd --create-home --uid 1000 lockstep \
    && mkdir /runs \
    && chown lockstep:lockstep /runs

WORKDIR /build
COPY constraints.txt ./
RUN pip install --no-cache-dir --constraint constraints.txt --index-url ${TORCH_INDEX} \
    --extra-index-url https://pypi.org/simple torch
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip install --no-cache-dir --constraint constraints.txt '.[export,serve]'

USER lockstep
# Runs are written to the current folder, so mount a folder of the user 1000 there.
WORKDIR /runs
VOLUME /runs
ENTRYPOINT ["lockstep"]
CMD ["--help"]
