# Entrain in a container: `docker build -t entrain .`, then for example
#
#     docker run --rm --read-only -v "$PWD/runs:/runs" entrain run -n 2 --strategy=ring --out=a
#
# The programs run as uid 1000, which owns /runs. Workers pass memory to each other by descriptor, so shared memory needs
# no --shm-size. Two containers share memory if they share a network namespace (--network=container:NAME); else they use
# TCP.

# ---- packages for a build; .devcontainer uses this stage ----
FROM debian:13 AS develop
ENV DEBIAN_FRONTEND=noninteractive
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends make git ca-certificates python3 gdb >/dev/null
COPY Makefile /tmp/entrain/
COPY tools/deps.sh /tmp/entrain/tools/
RUN make -C /tmp/entrain deps && rm -rf /tmp/entrain
RUN useradd --create-home --uid 1000 entrain

# ---- the programs, and the names of the packages that they load ----
FROM develop AS build
COPY . /src
RUN make -C /src install PREFIX=/opt/entrain
RUN find /opt/entrain -type f \( -perm -u+x -o -name '*.so*' \) -exec ldd {} + 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' \
        | sort -u | xargs realpath | sed 's|^/usr||' | sed 's|^|*|' | xargs dpkg -S | cut -d: -f1 | sort -u > /opt/packages

# ---- the image to run ----
FROM debian:13
COPY --from=build /opt/packages /opt/packages
RUN apt-get update -qq && DEBIAN_FRONTEND=noninteractive xargs -a /opt/packages apt-get install -y -qq --no-install-recommends \
        dataset-fashion-mnist gnuplot-nox ca-certificates >/dev/null && rm -rf /var/lib/apt/lists/* /opt/packages
COPY --from=build /opt/entrain /usr/local
RUN ldconfig && useradd --uid 1000 entrain && mkdir /runs && chown entrain /runs
USER entrain
WORKDIR /runs
VOLUME ["/runs", "/tmp"]
ENTRYPOINT ["/usr/local/bin/entrain"]
CMD ["--help"]
