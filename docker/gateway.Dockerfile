# The gateway of docker/replicas.yml: Caddy and its configuration, as a user without rights.
# From the project's root: docker build --file docker/gateway.Dockerfile .
FROM caddy:2.11.7-alpine

# It listens above 1024, so it needs no right to listen below; with the right in the file and none in the container
# (cap_drop) it would not even start. What must outlive a restart (certificates, keys) is in /data, which a new volume
# takes over with its owner.
RUN setcap -r /usr/bin/caddy \
    && chown -R 10001:10001 /data /config
COPY --chmod=0644 docker/gateway/Caddyfile /etc/caddy/Caddyfile
USER 10001:10001
EXPOSE 8080 8443
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s CMD ["wget", "-q", "-O", "/dev/null", "http://127.0.0.1:8081/"]
ENTRYPOINT ["caddy"]
CMD ["run", "--config=/etc/caddy/Caddyfile", "--adapter=caddyfile"]
