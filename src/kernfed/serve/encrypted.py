"""Encrypted answers through the gateway, which only combines: it has no secret key, and can read no score and no label.

Whoever asks sends two keys once, one for the sites and those for the evaluation, and then rows. Sites encrypt their
scores under the first, the gateway combines them by the second, and what comes back is read where the secret key is.
"""

import asyncio
import base64
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kernfed.base.checks import FloatArray
from kernfed.federation.folding.secure import check_encryptable, check_keys, combined_answer
from kernfed.files import labels_to_values
from kernfed.kahm.model import FoldingModel
from kernfed.secure.protocol import BITS, PUBLIC_KEY_SCHEMES, PublicKeys, name_of_keys, open_keys
from kernfed.serve.gateway import Gateway
from kernfed.serve.requests import RequestError

#: Uploads of keys at a time.
_UPLOADS = 2


class EncryptedDesk:
    """Keys of those who ask, and answers made with them."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._holders: OrderedDict[str, PublicKeys] = OrderedDict()
        self._uploads = 0
        self._combining = asyncio.Lock()

    def _model(self) -> FoldingModel:
        """The model, if its answers can be computed on encrypted scores of sites."""
        model = self._gateway.model.folding
        if self._gateway.federation is None or model is None or model is not self._gateway.model:
            raise RequestError(
                422,
                "encrypted answers need a folding model whose machines are at the sites of a hub, this is a "
                f"{type(self._gateway.model).__name__}: train with --learner folding --measure rms",
            )
        check_encryptable(model)
        return model

    def about(self) -> dict[str, Any]:
        """Sites, classes, schemes and bits that keys must be made for."""
        model = self._model()
        return {
            "sites": list(model.sites),
            "classes": labels_to_values(model.classes_),
            "schemes": list(PUBLIC_KEY_SCHEMES),
            "bits": list(BITS),
            "most_rows": min(self._gateway.limits.encrypted_rows, self._gateway.limits.rows),
        }

    @contextmanager
    def upload(self) -> Iterator[None]:
        """While keys arrive and are opened; refused where others send theirs, or the model cannot use any."""
        self._model()
        if self._uploads >= _UPLOADS:
            raise RequestError(503, "keys of others are being read; send yours again in some seconds", wait=5.0)
        self._uploads += 1
        try:
            yield
        finally:
            self._uploads -= 1

    async def take_keys(self, body: bytes) -> str:
        """Name of the keys in a body, which are remembered in the place of those that were not used for longest."""
        keys = await asyncio.to_thread(self._open, body)
        name = name_of_keys(body)
        self._holders[name] = keys
        self._holders.move_to_end(name)
        while len(self._holders) > self._gateway.limits.key_holders:
            self._holders.popitem(last=False)
        return name

    def _open(self, body: bytes) -> PublicKeys:
        try:
            keys = open_keys(body)
        except ImportError:
            raise RequestError(501, "this gateway has no SEAL: install the extra fhe beside it") from None
        check_keys(self._model(), keys.site_key, keys.server)
        return keys

    async def answer(self, rows: FloatArray, caller: str, name: str) -> dict[str, Any]:
        """The answer to rows (n, p), which the holder of keys ``name`` can read; who spoke, and who is missing."""
        keys = self._holders.get(name)
        if keys is None:
            raise RequestError(404, "these keys are not known, or no longer: send them with PUT /encrypted/keys")
        most = self._gateway.limits.encrypted_rows
        if len(rows) > most:
            raise RequestError(413, f"an encrypted request may have at most {most} rows, got {len(rows)}")
        self._holders.move_to_end(name)
        async with self._combining:
            return await asyncio.to_thread(self._combined, rows, caller, keys)

    def _combined(self, rows: FloatArray, caller: str, keys: PublicKeys) -> dict[str, Any]:
        model, gateway = self._model(), self._gateway
        assert gateway.federation is not None
        # An answer of one site alone would tell of that site; where there are several, at least two answer.
        needed = max(gateway.min_replies, min(2, len(model.sites)))
        answer = combined_answer(
            gateway.federation.on_behalf_of(caller),
            model,
            model._queries(rows),
            site_key=keys.site_key,
            server=keys.server,
            min_replies=needed,
            timeout=gateway.timeout,
        )
        message = base64.b64encode(answer.message).decode()
        return {"answer": message, "sites": list(answer.sites), "missing": dict(answer.missing)}
