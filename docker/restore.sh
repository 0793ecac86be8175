#!/usr/bin/env bash
# Brings back what backup.sh has copied:
#
#   restore.sh NAME | latest | --list
#
# Only into an empty place: databases without tables, and folders with nothing in them. What is there is never replaced
# or mixed with what comes back. Stop the service first, and give it new volumes (docs/operations.md says how).
# The sums are checked before anything is written. Each database comes back in one transaction, the service's own last:
# cut off before that, the service is empty, not half full. Then empty the place and restore again.
#
# The service may be started as soon as this has ended well. Jobs that ran when the backup was made go on from their
# newest checkpoint, once their lease has run out; what was submitted or deleted after the backup is not known.
set -euo pipefail
umask 077

BACKUPS=${BACKUPS:-/backups} NML_HOME=${NML_HOME:-/data} MLFLOW_FILES=${MLFLOW_FILES:-/mlflow}

say() { printf '%s\n' "restore: $*" >&2; }
fail() { say "$*"; exit 1; }
names() { find "$BACKUPS" -mindepth 1 -maxdepth 1 -type d -name '[0-9]*T[0-9]*Z' | sed 's|.*/||' | sort; }

[ $# = 1 ] || fail "usage: restore.sh NAME | latest | --list"
[ -d "$BACKUPS" ] || fail "$BACKUPS is no folder. Mount the volume, or set BACKUPS."
case $1 in
--list) names; exit ;;
latest)
    name=$(names | tail -n 1)
    [ -n "$name" ] || fail "there is no backup in $BACKUPS."
    ;;
*[!0-9TZ]* | '') fail "'$1' is no name of a backup. restore.sh --list shows them." ;;
*) name=$1 ;;
esac
place="$BACKUPS/$name"
[ -f "$place/SHA256SUMS" ] || fail "there is no backup $name in $BACKUPS. restore.sh --list shows them."
: "${PGHOST:?says where PostgreSQL is}"
: "${NML_DATABASE_PASSWORD:?is the password of the role nml}" "${MLFLOW_DATABASE_PASSWORD:?is that of the role mlflow}"
export PGHOST PGCONNECT_TIMEOUT="${PGCONNECT_TIMEOUT:-10}" PGAPPNAME=nml-restore

as() { # ROLE PROGRAM …: run a client program as a role, in the database that --dbname names
    case $1 in
    nml) PGPASSWORD=$NML_DATABASE_PASSWORD PGUSER=nml ;;
    mlflow) PGPASSWORD=$MLFLOW_DATABASE_PASSWORD PGUSER=mlflow ;;
    esac
    shift
    PGPASSWORD=$PGPASSWORD PGUSER=$PGUSER "$@"
}
ask() { as "$1" psql --no-password --no-psqlrc --set=ON_ERROR_STOP=1 -At --dbname="$2" --command="$3"; }

say "checking $name"
for file in nml.dump mlflow.dump data.tar mlflow.tar manifest.txt; do
    grep -q "^[0-9a-f]\{64\}  $file\$" "$place/SHA256SUMS" || fail "$place: SHA256SUMS does not name $file."
done
(cd "$place" && sha256sum --check --strict --quiet SHA256SUMS) >&2 ||
    fail "$place is damaged. Nothing was changed. Restore another: restore.sh --list"
databases="mlflow nml" # named as their roles; what decides whether the service knows anything comes last

for folder in "$NML_HOME" "$MLFLOW_FILES"; do
    [ -d "$folder" ] || fail "$folder is no folder. Mount the volume, or set NML_HOME, MLFLOW_FILES."
    found=$(find "$folder" -mindepth 1 -maxdepth 1 ! -name lost+found -print -quit)
    [ -z "$found" ] || fail "$folder is not empty (it holds ${found##*/}). Nothing was changed." \
        "Stop the service, move away what is there or mount an empty volume, and restore again."
done
tables="SELECT count(*) FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
for database in $databases; do
    count=$(ask "$database" "$database" "$tables")
    [ "$count" = 0 ] || fail "database $database is not empty (it has $count tables). Nothing was changed." \
        "Stop the service, make the database anew or mount an empty volume for PostgreSQL, and restore again."
done

trap 'say "NOT restored: empty the databases and folders, and restore again"' EXIT
own=--no-overwrite-dir # the folders themselves are mount points, which only root may give to their owner
[ "$(id -u)" != 0 ] || own=--overwrite-dir
unpack() { # FILE FOLDER
    say "files of $2"
    tar --extract --file="$place/$1" --directory="$2" --numeric-owner --preserve-permissions "$own"
    sync --file-system "$2"
}
unpack data.tar "$NML_HOME"
unpack mlflow.tar "$MLFLOW_FILES"
for database in $databases; do
    say "database $database"
    as "$database" pg_restore --no-password --no-owner --no-privileges --exit-on-error \
        --single-transaction --dbname="$database" "$place/$database.dump"
    ask "$database" "$database" ANALYZE >/dev/null
done
for table in jobs events datasets embeddings aliases keys; do
    told=$(sed -n "s/^nml\.$table: //p" "$place/manifest.txt")
    found=$(ask nml nml "SELECT count(*) FROM $table")
    [ "$told" = "$found" ] || fail "table $table has $found rows, and the backup $told."
done
trap - EXIT
sed 's/^/  /' "$place/manifest.txt" >&2
say "restored $name. Start the service."
