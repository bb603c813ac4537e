# docker build -t evald .
# docker run --rm -p 127.0.0.1:50051:50051 -p 127.0.0.1:9464:9464 -p 127.0.0.1:50080:50080 -e EVALD_INSECURE_PUBLIC=true evald
#
# In a container the server has to listen on all addresses, which it refuses without a certificate and keys
# (docs/security.md). EVALD_INSECURE_PUBLIC=true says that something around it encrypts and authenticates, or
# that, as above, only this machine reaches the ports.

FROM python:3.13-slim-bookworm AS build
RUN python -m venv /opt/evald
WORKDIR /src
# Dependencies first, pinned by hash: a change of evald alone does not install them again.
COPY deploy/requirements.lock ./
RUN /opt/evald/bin/pip install --no-cache-dir --require-hashes -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY client client
COPY server server
RUN /opt/evald/bin/pip install --no-cache-dir ".[server,fast,jwt,postgres,web]"

FROM python:3.13-slim-bookworm
RUN useradd --system --uid 10001 --home-dir /var/lib/evald --create-home --shell /usr/sbin/nologin evald
COPY --from=build /opt/evald /opt/evald
# The allocator keeps up to 16 MiB of freed memory for the next call, and returns blocks of 4 MiB and more to the
# kernel at once. With the C library's defaults, finding pages again takes a quarter of a call of 1,000 messages.
ENV PATH=/opt/evald/bin:$PATH \
    MALLOC_TRIM_THRESHOLD_=16777216 \
    MALLOC_MMAP_THRESHOLD_=4194304 \
    PYTHONUNBUFFERED=1 \
    EVALD_LISTEN=0.0.0.0:50051 \
    EVALD_HTTP=0.0.0.0:9464 \
    EVALD_WEB=0.0.0.0:50080 \
    EVALD_DATA_DIR=/var/lib/evald
USER 10001:10001
VOLUME /var/lib/evald
EXPOSE 50051 9464 50080
HEALTHCHECK --interval=30s --timeout=10s --start-period=30s \
    CMD ["evald", "health"]
ENTRYPOINT ["evald"]
CMD ["serve"]
