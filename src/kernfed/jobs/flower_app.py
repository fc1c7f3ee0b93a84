"""The files of a Flower app that runs kernfed's learners, with what a secure deployment of it needs."""

import json
import subprocess
from pathlib import Path

from kernfed.errors import InputError
from kernfed.jobs.run import COMMON, job_settings
from kernfed.site.fields import describe, settings_by_name

_PYPROJECT = """\
[project]
name = "kernfed-app"
version = "1.0.0"
description = "kernfed on Flower: learners ask, sites answer"
license = {{ text = "Apache-2.0" }}
# Left empty on purpose: kernfed is installed on every machine beforehand, and nothing is fetched when a run starts.
dependencies = []

[tool.flwr.app]
publisher = "kernfed"
# Only this travels to the sites; results, keys and certificates stay where they are.
fab-include = ["kernfed_app/*.py"]

[tool.flwr.app.components]
serverapp = "kernfed_app.server_app:app"
clientapp = "kernfed_app.client_app:app"

# What a run does unless something else is set; `kernfed flower-run` and `flwr run -c` change it.
[tool.flwr.app.config]
{config}
"""

_SERVER_APP = '''\
"""Does what the run's configuration says, on this machine, by asking the sites."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from kernfed.jobs.run import serve

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the job and write its results."""
    serve(grid, context)
'''

_CLIENT_APP = '''\
"""Answers for the site that the node's configuration describes."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from kernfed.federation.engines.flower_site import ACTION, answer

app = ClientApp()


@app.query(ACTION)
def query(message: Message, context: Context) -> Message:
    """Reply to one question."""
    return answer(message, context)
'''

_ENVIRONMENT = """\
# Source this in every shell that starts a part of Flower:  . app/environment.sh
# No telemetry, no search for updates; the configuration of Flower's commands is in home/config.toml.
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 RAY_USAGE_STATS_ENABLED=0
# Seconds after which a node looks again whether there is something to do; Flower's own is 1.
export FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.25
FLWR_HOME="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/home"
export FLWR_HOME
"""

_CERTIFICATES = """\
#!/usr/bin/env bash
# Makes an authority and the server's certificate:  ./make-certificates.sh [NAME-OR-ADDRESS ...]
# The certificate is valid for localhost, 127.0.0.1 and what is named. Keep the *.key files secret; give ca.crt to
# every site, over a way you trust.
# The server's certificate ends after a year:  ./make-certificates.sh --renew  makes the next one, for the same names,
# by the same authority, so that the sites keep their ca.crt. Restart the SuperLink, which reads it when it starts.
set -euo pipefail
cd "$(dirname "$0")"
mkdir -p certificates
cd certificates
umask 077
year=365

certify_authority() {  # its key stays, so that whatever it has signed stays valid
    openssl req -x509 -new -key ca.key -sha256 -days $((10 * year)) -subj "/CN=kernfed authority" -out ca.crt.new \\
        -addext "keyUsage=critical,keyCertSign,cRLSign"
    mv ca.crt.new ca.crt
}

if [ "${1:-}" = "--renew" ]; then
    if [ $# -ne 1 ] || [ ! -e ca.key ] || [ ! -e server.pem ]; then
        echo "--renew stands alone, and needs the ca.key and server.pem in $(pwd) that were made before" >&2
        exit 2
    fi
    names="$(openssl x509 -in server.pem -noout -ext subjectAltName | tail -n 1 | sed 's/IP Address:/IP:/g; s/ //g')"
    if ! openssl x509 -in ca.crt -noout -checkend $((year * 86400)) > /dev/null; then
        end="$(openssl x509 -in ca.crt -noout -enddate | cut -d= -f2)"
        certify_authority
        echo "the authority's certificate ends on $end: it was renewed with its key;" \\
            "give ca.crt to every site until then"
    fi
else
    if [ -e ca.key ]; then
        echo "certificates/ca.key exists already; --renew makes the next certificate, and to begin anew remove the" \\
            "folder certificates" >&2
        exit 1
    fi
    names="DNS:localhost,IP:127.0.0.1"
    for name in "$@"; do
        case "$name" in
            *[!0-9.]*) names="$names,DNS:$name" ;;
            *) names="$names,IP:$name" ;;
        esac
    done
    openssl ecparam -name prime256v1 -genkey -noout -out ca.key
    certify_authority
    openssl ecparam -name prime256v1 -genkey -noout -out server.key
fi
openssl req -new -key server.key -subj "/CN=kernfed server" -out server.csr
{
    echo "basicConstraints=critical,CA:FALSE"
    echo "keyUsage=critical,digitalSignature"
    echo "extendedKeyUsage=serverAuth"
    echo "subjectAltName=$names"
    echo "subjectKeyIdentifier=hash"
    echo "authorityKeyIdentifier=keyid"
} > server.ext
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -sha256 -days $year \\
    -extfile server.ext -out server.pem.new 2> /dev/null
openssl verify -CAfile ca.crt server.pem.new > /dev/null
mv server.pem.new server.pem
rm server.csr server.ext
echo "certificates for $names are in $(pwd); that of the server ends on" \\
    "$(openssl x509 -in server.pem -noout -enddate | cut -d= -f2)"
"""

_NODE_KEY = """\
#!/usr/bin/env bash
# Makes the key by which a site proves who it is:  ./make-node-key.sh SITE
# Run it at the site; only keys/SITE.pub leaves it, to be registered at the SuperLink.
set -euo pipefail
if [ $# -ne 1 ]; then
    echo "usage: $0 SITE" >&2
    exit 2
fi
cd "$(dirname "$0")"
mkdir -p keys
chmod 700 keys
ssh-keygen -q -t ecdsa -b 384 -N "" -C "$1" -f "keys/$1" < /dev/null
echo "register $(pwd)/keys/$1.pub under the name $1"
"""

_CONNECTION = """\
[superlink]
default = "deployment"

[superlink.deployment]
address = {address}
root-certificates = {certificate}
"""

_VIRTUAL_CONNECTION = """\
[superlink]
default = "simulation"

[superlink.simulation]
address = {address}
insecure = true
options.num-supernodes = {nodes}
"""


def write_app(
    folder: Path, address: str = "127.0.0.1:9092", results: Path | None = None, simulate: int = 0
) -> list[str]:
    """Write the app into ``folder`` and return the names of its files."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(f"--address must be HOST:PORT, got {address!r}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists and is not empty; name another folder")
    home = folder.resolve()
    files = {
        "pyproject.toml": _PYPROJECT.format(config=_configuration((results or home / "results").resolve())),
        "kernfed_app/__init__.py": '"""kernfed on Flower."""\n',
        "kernfed_app/server_app.py": _SERVER_APP,
        "kernfed_app/client_app.py": _CLIENT_APP,
        "environment.sh": _ENVIRONMENT,
        "make-certificates.sh": _CERTIFICATES,
        "make-node-key.sh": _NODE_KEY,
        "home/config.toml": (_VIRTUAL_CONNECTION if simulate else _CONNECTION).format(
            address=_toml(address), certificate=_toml(str(home / "certificates" / "ca.crt")), nodes=simulate
        ),
        ".gitignore": "home/\ncertificates/\nkeys/\nresults/\n",
    }
    for name, text in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        if name.startswith("make-"):
            place.chmod(0o755)
    return list(files)


def renew_certificates(folder: Path) -> str:
    """Make the server's next certificate, by the authority that the sites know; returns what the script said.

    An app of an earlier version gets the script of this one.
    """
    script = folder / "make-certificates.sh"
    if not (folder / "certificates" / "ca.key").is_file() or not script.is_file():
        raise InputError(f"{folder} holds no certificates of an app to renew; make them with {script}")
    script.write_text(_CERTIFICATES, encoding="utf-8")
    done = subprocess.run([script.resolve(), "--renew"], capture_output=True, text=True, check=False)
    if done.returncode:
        printed = done.stderr.strip() or done.stdout.strip()
        raise InputError(f"the certificates in {folder} cannot be renewed: {printed}")
    return done.stdout.strip()


def _configuration(results: Path) -> str:
    """Lines with every setting of a job, each below what it is for."""
    values = {**job_settings(), "results": str(results)}
    common = [f"# {setting.help}\n{setting.name} = {_toml(values[setting.name])}" for setting in COMMON]
    learners = [f"# {describe(owners)}\n{name} = {_toml(values[name])}" for name, owners in settings_by_name().items()]
    return "\n".join([*common, "# Of learners. Empty text and 0 stand for the default.", *learners])


def _toml(value: str | int | float) -> str:
    """A value in TOML, whose text and numbers are written as JSON's."""
    return json.dumps(value)
