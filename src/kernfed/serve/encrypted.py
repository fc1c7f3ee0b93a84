"""Encrypted answers through the gateway, which only combines: it has no secret key, and can read no score and no label.

Whoever asks sends two keys once, one for the sites and those for the evaluation, and then rows. Sites encrypt their
scores under the first, the gateway combines them by the second, and what comes back is read where the secret key is.
"""

import asyncio
import base64
from collections import OrderedDict
from collections.abc import AsyncIterable
from typing import Any

from kernfed.base.checks import FloatArray
from kernfed.federation.folding.secure import check_encryptable, check_keys, combined_answer
from kernfed.files import labels_to_values
from kernfed.kahm.model import FoldingModel
from kernfed.secure.protocol import BITS, PUBLIC_KEY_SCHEMES, PublicKeys, name_of_keys, open_keys
from kernfed.serve.gateway import Gateway
from kernfed.serve.requests import RequestError

#: Key holders that are remembered, each some 200 MB of memory, and uploads of keys at a time.
MOST_HOLDERS, _UPLOADS = 4, 2
#: Bytes of keys, seconds for them to arrive, and rows of one request: a ciphertext holds 64 to 128 of them.
MOST_BYTES, _SECONDS, MOST_ROWS = 512_000_000, 300.0, 1024


class EncryptedDesk:
    """Keys of those who ask, and answers made with them."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._holders: OrderedDict[str, PublicKeys] = OrderedDict()
        self._uploads = 0
        self._combining = asyncio.Lock()

    def _model(self) -> FoldingModel:
        """The model, if its answers can be computed on encrypted scores of sites."""
        model, kind = self._gateway.model, type(self._gateway.model).__name__
        if self._gateway.federation is None or not isinstance(model, FoldingModel):
            told = f"encrypted answers need a folding model whose machines are at the sites of a hub, this is a {kind}"
            raise RequestError(422, f"{told}: train with --learner folding --measure rms")
        check_encryptable(model)
        return model

    def about(self) -> dict[str, Any]:
        """What keys must be made for."""
        model = self._model()
        return {
            "sites": list(model.sites),
            "classes": labels_to_values(model.classes_),
            "schemes": list(PUBLIC_KEY_SCHEMES),
            "bits": list(BITS),
            "most_rows": min(MOST_ROWS, self._gateway.limits.rows),
        }

    async def take_keys(self, stream: AsyncIterable[bytes]) -> str:
        """Remember the keys in a body, in the place of those that were not used for longest; returns their name."""
        self._model()
        if self._uploads >= _UPLOADS:
            raise RequestError(503, "keys of others are being read; send yours again in some seconds", wait=5.0)
        self._uploads += 1
        try:
            body = await _read(stream)
            keys = await asyncio.to_thread(self._open, body)
            name = name_of_keys(body)
        finally:
            self._uploads -= 1
        self._holders[name] = keys
        self._holders.move_to_end(name)
        while len(self._holders) > MOST_HOLDERS:
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
        if len(rows) > MOST_ROWS:
            raise RequestError(413, f"an encrypted request may have at most {MOST_ROWS} rows, got {len(rows)}")
        self._holders.move_to_end(name)
        async with self._combining:
            return await asyncio.to_thread(self._combined, rows, caller, keys)

    def _combined(self, rows: FloatArray, caller: str, keys: PublicKeys) -> dict[str, Any]:
        model, gateway = self._model(), self._gateway
        assert gateway.federation is not None
        # What one site alone attains would be told of that site; where there are several, at least two answer.
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


async def _read(stream: AsyncIterable[bytes]) -> bytes:
    parts, size = [], 0
    try:
        async with asyncio.timeout(_SECONDS):
            async for part in stream:
                size += len(part)
                if size > MOST_BYTES:
                    raise RequestError(413, f"keys may have at most {MOST_BYTES:,} bytes")
                parts.append(part)
    except TimeoutError:
        raise RequestError(408, f"the keys did not arrive within {_SECONDS:g} s") from None
    return b"".join(parts)
