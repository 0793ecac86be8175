#!/usr/bin/env bash
# Copies all that the service keeps into BACKUPS/<time, UTC>, while it runs:
#
#   backup.sh [--keep N]        with --keep, only the newest N backups stay
#
#   nml.dump mlflow.dump     the databases, for pg_restore
#   data.tar mlflow.tar      the folders NML_HOME and MLFLOW_FILES
#   manifest.txt             versions, times, rows of the main tables, numbers of files
#   SHA256SUMS               of all of these
#
# The order is what makes a copy of a running service whole. Files are there before a row speaks of them, so the
# databases come first: whatever they refer to is in the archives, unless someone deleted it in these minutes. The
# archives are a little newer than the databases, and the service takes that in its stride: a published version is not
# built again, events of a run that were told are not told again, a job that ran goes on from a checkpoint, if one was
# caught whole.
#
# Needs what the image of PostgreSQL has: its client programs, bash, GNU tar, coreutils, sed, find, flock.
# Passwords go by the environment alone: a command line is for everyone's eyes.
set -euo pipefail
umask 077

BACKUPS=${BACKUPS:-/backups} NML_HOME=${NML_HOME:-/data} MLFLOW_FILES=${MLFLOW_FILES:-/mlflow}
: "${PGHOST:?says where PostgreSQL is}"
: "${NML_DATABASE_PASSWORD:?is the password of the role nml}" "${MLFLOW_DATABASE_PASSWORD:?is that of the role mlflow}"
export PGHOST PGCONNECT_TIMEOUT="${PGCONNECT_TIMEOUT:-10}" PGAPPNAME=nml-backup

say() { printf '%s\n' "backup: $*" >&2; }
fail() { say "$*"; exit 1; }

keep=
case $# in
0) ;;
2) [ "$1" = --keep ] && keep=$2 ;;
esac
if [ $# -gt 0 ]; then
    case $keep in '' | *[!0-9]* | 0*) fail "usage: backup.sh [--keep N], N from 1 on" ;; esac
fi
for folder in "$NML_HOME" "$MLFLOW_FILES" "$BACKUPS"; do
    [ -d "$folder" ] || fail "$folder is no folder. Mount the volume, or set NML_HOME, MLFLOW_FILES, BACKUPS."
done
case "$BACKUPS/" in
"$NML_HOME"/* | "$MLFLOW_FILES"/*) fail "$BACKUPS lies in a folder that is copied. Put BACKUPS elsewhere." ;;
esac

# One at a time. The lock goes with the last process that has it, so what is found below was left by a killed one.
exec 9>"$BACKUPS/.lock"
flock --nonblock 9 || fail "another backup is at work in $BACKUPS. Wait for it."
find "$BACKUPS" -mindepth 1 -maxdepth 1 -name '.*.partial' -exec rm -rf {} +

as() { # ROLE PROGRAM …: run a client program as a role, in the database that --dbname names
    case $1 in
    nml) PGPASSWORD=$NML_DATABASE_PASSWORD PGUSER=nml ;;
    mlflow) PGPASSWORD=$MLFLOW_DATABASE_PASSWORD PGUSER=mlflow ;;
    esac
    shift
    PGPASSWORD=$PGPASSWORD PGUSER=$PGUSER "$@"
}
ask() { as "$1" psql --no-password --no-psqlrc --set=ON_ERROR_STOP=1 -At --dbname="$2" --command="$3"; }

name=$(date -u +%Y%m%dT%H%M%SZ)
while [ -e "$BACKUPS/$name" ]; do # two in one second
    sleep 1
    name=$(date -u +%Y%m%dT%H%M%SZ)
done
place="$BACKUPS/.$name.partial"
trap 'rm -rf "$place"' EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
mkdir "$place"
begun=$(date -u +%Y-%m-%dT%H:%M:%SZ)

dump() { # DATABASE, which has the name of its role
    say "database $1"
    as "$1" pg_dump --no-password --format=custom --no-owner --no-privileges --dbname="$1" --file="$place/$1.dump"
}

# nml first: the MLflow run of each of its jobs is then in the dump of mlflow, which is later.
dump nml
dump mlflow

# tar's exit code 1 is "a file changed, or vanished, while it was read": of a running service some always do. Each file
# that matters is written under another name (.tmp) and renamed, or only ever grows. 2 is a real failure: a full disk,
# a file that may not be read.
archive() { # FILE FOLDER ARGUMENTS…
    file=$1 folder=$2
    shift 2
    status=0
    tar --file="$place/$file" --directory="$folder" --format=posix --numeric-owner --warning=no-file-changed \
        --warning=no-file-removed --warning=no-file-ignored --exclude='*.tmp' --exclude='.*.deleted' "$@" || status=$?
    [ "$status" -le 1 ] || fail "tar ended with $status on $folder. No backup was made."
}

# One archive, because versions share their largest files with the runs (hard links): they are stored once.
# What is made of a thing comes before the thing: versions and outcomes before runs, uploads (which go once the data set
# is there) before data sets. Last the runs once more without their large folders: their events must not be older than
# a checkpoint, for a run that goes on takes them back to it, and cannot invent what lies between.
say "files of $NML_HOME"
set --
for part in embeddings jobs uploads runs; do
    [ ! -d "$NML_HOME/$part" ] || set -- "$@" "./$part"
done
[ $# = 0 ] || archive data.tar "$NML_HOME" --create "$@"
archive data.tar "$NML_HOME" --append --anchored --exclude=./embeddings --exclude=./jobs --exclude=./uploads \
    --exclude='./runs/*/checkpoints' --exclude='./runs/*/embeddings' --exclude=./.migrate.lock --exclude=./lost+found .
say "files of $MLFLOW_FILES"
archive mlflow.tar "$MLFLOW_FILES" --create --anchored --exclude=./lost+found .

rows() { # DATABASE TABLE: rows in the dump itself, which also shows that it can be read
    pg_restore --data-only --table="$2" --file=- "$place/$1.dump" | sed -n '/^COPY /,/^\\\.$/p' | sed '1d;$d' | wc -l
}
{
    echo "name: $name"
    echo "begun: $begun"
    echo "ended: $(date -u +%Y-%m-%dT%H:%M:%SZ)"
    found=$(ask nml nml 'SHOW server_version')
    echo "server: $found"
    found=$(ask nml nml 'SELECT version_num FROM alembic_version')
    echo "revision: $found"
    for table in jobs events datasets embeddings aliases keys; do
        found=$(rows nml "$table")
        echo "nml.$table: $found"
    done
    found=$(rows mlflow runs)
    echo "mlflow.runs: $found"
    for part in data mlflow; do
        found=$(tar --list --file="$place/$part.tar" | sed '/\/$/d' | wc -l)
        echo "$part.tar: $found files, $(stat --format=%s "$place/$part.tar") bytes"
    done
} >"$place/manifest.txt"
(cd "$place" && sha256sum -- *.dump *.tar manifest.txt >SHA256SUMS)

# On the disk before it gets its name: a folder under its name is whole, also after a power cut.
sync "$place"/* "$place"
mv -T "$place" "$BACKUPS/$name"
sync "$BACKUPS"
trap - EXIT
say "made $BACKUPS/$name ($(du -sh "$BACKUPS/$name" | cut -f1))"
echo "$name"

if [ -n "$keep" ]; then
    find "$BACKUPS" -mindepth 1 -maxdepth 1 -type d -name '[0-9]*T[0-9]*Z' | sort | head -n "-$keep" |
        while IFS= read -r old; do
            aside="$BACKUPS/.${old##*/}.partial" # never a half-removed one that looks whole
            mv -T "$old" "$aside"
            rm -rf "$aside"
            say "removed ${old##*/}, beyond the newest $keep"
        done
fi
