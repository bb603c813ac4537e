"""A CA for tests that signs any client certificate."""

import subprocess
from pathlib import Path

import grpc

from evald_server.cli import main


class Authority:
    """A folder with a CA, a server certificate, and client certificates made on request."""

    def __init__(self, folder: Path) -> None:
        assert main(["certs", "dev", str(folder)]) == 0
        self.folder = folder
        (folder / "ca.cnf").write_text(
            "[ca]\ndefault_ca=d\n[d]\ndatabase=index\nnew_certs_dir=.\nserial=serial\ncertificate=ca.pem\n"
            "private_key=ca.key\ndefault_md=sha256\npolicy=p\nunique_subject=no\n[p]\ncommonName=supplied\n"
        )
        (folder / "index").touch()
        (folder / "serial").write_text("01\n")

    def sign(
        self,
        name: str,
        san: str = "",
        usage: str = "clientAuth",
        until: str = "20990101000000Z",
        key: str = "ec",
    ) -> str:
        """Make name.pem and name.key. san, key: as openssl writes them, "URI:spiffe://...", "rsa:2048". Returns the
        name.
        """
        lines = [f"extendedKeyUsage={usage}", "basicConstraints=critical,CA:FALSE"]
        (self.folder / "extensions").write_text("\n".join([*lines, f"subjectAltName={san}" if san else ""]))
        curve = ["-pkeyopt", "ec_paramgen_curve:prime256v1"] if key == "ec" else []
        request = ["req", "-newkey", key, *curve, "-nodes", "-keyout"]
        for arguments in (
            [*request, f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}"],
            ["ca", "-batch", "-config", "ca.cnf", "-in", f"{name}.csr", "-out", f"{name}.pem", "-notext",
             "-startdate", "20200101000000Z", "-enddate", until, "-extfile", "extensions"],
        ):  # fmt: skip
            subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)
        return name

    def credentials(self, name: str | None, ca: Path | None = None) -> grpc.ChannelCredentials:
        """Return channel credentials, with a client certificate or without. ca: folder of the server's CA."""
        key, chain = (
            (None, None)
            if name is None
            else ((self.folder / f"{name}.{end}").read_bytes() for end in ("key", "pem"))
        )
        return grpc.ssl_channel_credentials(((ca or self.folder) / "ca.pem").read_bytes(), key, chain)
