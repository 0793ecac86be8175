#!/bin/bash
# What the entrypoint of the official PostgreSQL image does, with this machine's programs (first on PATH):
# at the first start a database directory with a password for everyone who comes over the network, then the scripts of
# /docker-entrypoint-initdb.d once; and then the command.
set -euo pipefail
if [ "$1" = postgres ] && [ ! -s "$PGDATA/PG_VERSION" ]; then
    : "${POSTGRES_PASSWORD:?}"
    user=${POSTGRES_USER:-postgres}
    initdb --pgdata="$PGDATA" --username="$user" --pwfile=<(printf '%s\n' "$POSTGRES_PASSWORD") \
        --auth-local=trust --auth-host=scram-sha-256 --encoding=UTF8 ${POSTGRES_INITDB_ARGS:-}
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
    echo "listen_addresses = '*'" >>"$PGDATA/postgresql.conf"
    pg_ctl --pgdata="$PGDATA" --wait --options="-c listen_addresses=''" start
    export POSTGRES_USER=$user POSTGRES_DB=${POSTGRES_DB:-$user} PGUSER=$user
    for script in /docker-entrypoint-initdb.d/*; do
        case $script in
            *.sh) if [ -x "$script" ]; then "$script"; else . "$script"; fi ;;
            *.sql) psql --set=ON_ERROR_STOP=1 --no-password --no-psqlrc --dbname="$POSTGRES_DB" --file="$script" ;;
        esac
    done
    pg_ctl --pgdata="$PGDATA" --mode=fast --wait stop
fi
exec "$@"
