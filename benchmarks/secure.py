"""Cost and correctness of encrypted answers: CPU seconds, bytes, memory, wrong answers.

    python benchmarks/secure.py                      every table, about three minutes on one core
    python benchmarks/secure.py --quick              5 x 10 and a few hundred cases
    python benchmarks/secure.py --json results.json  the same figures for machines
    python benchmarks/secure.py --tfhe               scheme tfhe, in the environment that has Concrete

Every setting runs in a process of its own, so that its peak memory is its own (all roles together). *Server* is the
CPU time of one answer, whatever part of a batch is used; *site* is one site's; the comparison multiplies the
published times of TFHE-rs for one minimum and one equality (SFM Table 6, 8 bits on an M1) by the number of them.
"""

import argparse
import json
import multiprocessing
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from kernfed.secure import KeyHolder, Server, Site, encode
from kernfed.secure.plain import attaining_minimum

SETTINGS = [(2, 3, 8), (5, 10, 8), (20, 10, 8), (100, 20, 8), (5, 10, 16)]
BATCH = 64
PUBLISHED_MS = {8: (101, 44), 16: (195, 82)}  # minimum, equality-comparison: SFM Table 6


def adversarial(rng: np.random.Generator, n_sites: int, n: int, n_classes: int, bits: int) -> np.ndarray:
    """Scores (Q, n, C), a quarter each: random; three values, so ties abound; neighbours; 0 and 1 mostly."""
    top = 2**bits - 1
    kinds = [
        rng.integers(0, top + 1, (n_sites, n, n_classes)),
        rng.integers(0, 3, (n_sites, n, n_classes)) * (top // 2),
        rng.integers(0, top, (1, n, 1)) + rng.integers(0, 2, (n_sites, n, n_classes)),
        np.where(rng.random((n_sites, n, n_classes)) < 0.05, rng.integers(0, 2, (1, n, 1)), top),
    ]
    return np.stack([kinds[i % 4][:, i] for i in range(n)], axis=1) / top


def wrong_answers(holder: KeyHolder, answer: bytes, scores: np.ndarray) -> int:
    """Queries whose set of classes differs from the one computed in clear."""
    setting = holder.setting
    expected = attaining_minimum(np.stack([encode(rows, setting.bits, setting.n_classes) for rows in scores]))
    return int((holder.attaining(answer) != expected).any(axis=1).sum())


def timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """Result, CPU seconds and wall seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    return work(), time.process_time() - cpu, time.perf_counter() - wall


def measure(n_sites: int, n_classes: int, bits: int) -> dict[str, Any]:
    """All roles of one setting."""
    rng = np.random.default_rng(0)
    holder, keys_cpu, _ = timed(lambda: KeyHolder(n_sites, n_classes, bits=bits, scheme="bfv"))
    site_key, evaluation = holder.site_key, holder.evaluation_keys
    server, load_cpu, _ = timed(lambda: Server(evaluation))
    sites = [Site(site_key, q) for q in range(n_sites)]
    scores = adversarial(rng, n_sites, BATCH, n_classes, bits)
    messages, sites_cpu, _ = timed(lambda: [s.encrypt(rows) for s, rows in zip(sites, scores, strict=True)])
    answer, batch_cpu, batch_wall = timed(lambda: server.combine(messages))
    wrong, read_cpu, _ = timed(lambda: wrong_answers(holder, answer, scores))
    single_scores = scores[:, :1]
    single, single_site_cpu, _ = timed(lambda: [s.encrypt(r) for s, r in zip(sites, single_scores, strict=True)])
    one, single_cpu, single_wall = timed(lambda: server.combine(single))
    wrong += wrong_answers(holder, one, single_scores)
    minimum, equality = PUBLISHED_MS[bits]
    parameters = holder._side.parameters
    return {
        "sites": n_sites,
        "classes": n_classes,
        "bits": bits,
        "degree": parameters.ring.degree,
        "modulus_bits": sum(parameters.ring.sizes),
        "privacy_bits": parameters.privacy_bits,
        "queries_per_ciphertext": parameters.layout.batch,
        "keys_cpu_s": keys_cpu,
        "server_load_keys_cpu_s": load_cpu,
        "server_batch_cpu_s": batch_cpu,
        "server_batch_wall_s": batch_wall,
        "server_per_query_ms": 1e3 * batch_cpu / BATCH,
        "all_roles_per_query_ms": 1e3 * (batch_cpu + sites_cpu + read_cpu) / BATCH,
        "server_single_cpu_s": single_cpu,
        "server_single_wall_s": single_wall,
        "all_roles_single_cpu_s": single_cpu + single_site_cpu,
        "site_batch_cpu_s": sites_cpu / n_sites,
        "site_key_bytes": len(site_key),
        "evaluation_keys_bytes": len(evaluation),
        "site_bytes_per_query": len(messages[0]) / BATCH,
        "site_bytes_single": len(single[0]),
        "answer_bytes": len(answer),
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "wrong": wrong,
        "published_tfhe_rs_s": (n_sites * n_classes * minimum + n_classes * equality) / 1e3,
    }


def count_wrong(n_sites: int, n_classes: int, bits: int, cases: int) -> dict[str, Any]:
    """Random and adversarial cases of one setting, in full ciphertexts."""
    rng = np.random.default_rng(1)
    holder = KeyHolder(n_sites, n_classes, bits=bits, scheme="bfv")
    server, sites = Server(holder.evaluation_keys), [Site(holder.site_key, q) for q in range(n_sites)]
    batch = holder._side.parameters.layout.batch
    wrong = done = ties = 0
    start = time.process_time()
    while done < cases:
        scores = adversarial(rng, n_sites, batch, n_classes, bits)
        answer = server.combine([s.encrypt(rows) for s, rows in zip(sites, scores, strict=True)])
        wrong += wrong_answers(holder, answer, scores)
        ties += int((holder.attaining(answer).sum(axis=1) > 1).sum())
        done += batch
    named = {"sites": n_sites, "classes": n_classes, "bits": bits}
    return {**named, "cases": done, "with_ties": ties, "wrong": wrong, "cpu_s": time.process_time() - start}


def threads() -> dict[str, Any]:
    """Two answers one after the other, and in two threads."""
    holder = KeyHolder(5, 10, scheme="bfv")
    server = Server(holder.evaluation_keys)
    scores = adversarial(np.random.default_rng(2), 5, BATCH, 10, 8)
    messages = [Site(holder.site_key, q).encrypt(rows) for q, rows in enumerate(scores)]
    _, _, serial = timed(lambda: [server.combine(messages) for _ in range(2)])

    def parallel() -> None:
        workers = [Thread(target=server.combine, args=(messages,)) for _ in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    return {"one_thread_wall_s": serial, "two_threads_wall_s": timed(parallel)[2]}


def digit_scores(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores (10, n, 10) of 10 sites that share the other digits, and the true labels (n,)."""
    from sklearn.datasets import load_digits

    from kernfed import KAHMClassifier

    rows, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(3).permutation(len(rows))
    rows, labels = rows[order] / 16, labels[order]
    scores = np.ones((10, n, 10))
    for q in range(10):
        mine = np.arange(n + q, len(rows), 10)
        model = KAHMClassifier(measure="rms", batch_size=100, partition="order", scale=None).fit(
            rows[mine], labels[mine]
        )
        scores[q][:, model.classes_.astype(int)] = model.scores(rows[:n])
    return scores, labels[:n]


def in_clear(scores: np.ndarray, bits: int) -> np.ndarray:
    """Decisions on rounded scores, without encryption."""
    encoded = np.stack([encode(rows, bits, scores.shape[2]) for rows in scores])
    return attaining_minimum(encoded).argmax(axis=1)


def digits(bits: int) -> dict[str, Any]:
    """200 encrypted queries against the same decisions in clear; 900 in clear against scores that are not rounded."""
    scores, truth = digit_scores(200)
    holder = KeyHolder(10, 10, bits=bits, scheme="bfv")
    server, site_key = Server(holder.evaluation_keys), holder.site_key
    found = holder.decide(server.combine([Site(site_key, q).encrypt(scores[q]) for q in range(10)]))
    many, labels = digit_scores(900)
    exact, rounded = many.min(axis=0).argmin(axis=1), in_clear(many, bits)
    return {
        "bits": bits,
        "queries": 200,
        "encrypted_differs_from_clear": int((found != in_clear(scores, bits)).sum()),
        "accuracy_encrypted": float((found == truth).mean()),
        "queries_in_clear": 900,
        "rounding_changes_class": int((rounded != exact).sum()),
        "accuracy_exact": float((exact == labels).mean()),
        "accuracy_rounded": float((rounded == labels).mean()),
    }


def tfhe(n_sites: int, n_classes: int, bits: int) -> dict[str, Any]:
    """One query of scheme tfhe."""
    from kernfed.secure.tfhe import circuit

    compiled, compile_cpu, _ = timed(lambda: circuit(n_sites, n_classes, bits))
    holder, keys_cpu, _ = timed(lambda: KeyHolder(n_sites, n_classes, bits=bits, scheme="tfhe"))
    server, site_key = Server(holder.evaluation_keys), holder.site_key
    scores = adversarial(np.random.default_rng(0), n_sites, 1, n_classes, bits)
    messages = [Site(site_key, q).encrypt(rows) for q, rows in enumerate(scores)]
    answer, cpu, wall = timed(lambda: server.combine(messages))
    bootstraps = int(compiled.programmable_bootstrap_count)
    return {
        "sites": n_sites,
        "classes": n_classes,
        "bits": bits,
        "bootstraps": bootstraps,
        "error": float(compiled.global_p_error),
        "compile_cpu_s": compile_cpu,
        "keys_cpu_s": keys_cpu,
        "server_cpu_s": cpu,
        "server_wall_s": wall,
        "extrapolated_20x10_cpu_s": cpu / bootstraps * (199 * 11 + 10 * 5),
        "extrapolated_100x20_cpu_s": cpu / bootstraps * (1999 * 11 + 20 * 5),
        "evaluation_keys_bytes": len(holder.evaluation_keys),
        "site_bytes_per_query": len(messages[0]),
        "answer_bytes": len(answer),
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "wrong": wrong_answers(holder, answer, scores),
    }


def alone(work: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Run in a fresh process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(work, *arguments).result()


def show(console: Console, title: str, rows: list[dict[str, Any]]) -> None:
    """One line per figure, one column per setting."""
    table = Table(title=title, show_header=False)
    table.add_column(no_wrap=True)
    for name in rows[0]:
        values = [row[name] for row in rows]
        table.add_row(name, *[f"{v:,.0f}" if isinstance(v, int) or v >= 1000 else f"{v:.3g}" for v in values])
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--tfhe", action="store_true", help="scheme tfhe only")
    parser.add_argument("--cases", type=int, default=10_000, help="cases in which answers are counted")
    parser.add_argument("--json", type=Path, help="write the figures here")
    chosen = parser.parse_args()
    cases = 256 if chosen.quick else chosen.cases
    console = Console(width=max(120, Console().width))
    if chosen.tfhe:
        show(console, "scheme tfhe, one query", [alone(tfhe, *setting) for setting in [(2, 3, 8), (5, 10, 8)]])
        return
    figures: dict[str, list[dict[str, Any]]] = {"settings": [], "cases": [], "threads": [], "digits": []}
    for setting in [(5, 10, 8)] if chosen.quick else SETTINGS:
        figures["settings"].append(alone(measure, *setting))
    show(console, f"encrypted answers, batch of {BATCH}", figures["settings"])
    for share, setting in [(0.8, (2, 3, 8)), (0.1, (2, 4, 16)), (0.1, (5, 10, 8))]:
        figures["cases"].append(alone(count_wrong, *setting, int(share * cases)))
    show(console, "random and adversarial cases", figures["cases"])
    figures["threads"].append(alone(threads))
    show(console, "threads (sealapi holds the interpreter lock: use processes)", figures["threads"])
    for bits in (8,) if chosen.quick else (8, 16):
        figures["digits"].append(alone(digits, bits))
    show(console, "digits, 10 sites", figures["digits"])
    if chosen.json:
        chosen.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
