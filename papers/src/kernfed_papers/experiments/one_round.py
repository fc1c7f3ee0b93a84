"""One round against pooled rows and its peers: twelve sets, two ways to spread rows, three seeds."""

from kernfed_papers.experiment import Experiment, Row, Selection
from kernfed_papers.one_round.cells import REPETITIONS, cells
from kernfed_papers.one_round.sets import SETS
from kernfed_papers.pages.one_round import one_round_tables

_QUICK = Selection(sets=("breast_cancer",), methods=("neighbours", "logistic", "afl", "gh-lda", "folding"), seeds=(0,))


def run(seed: int, quick: bool) -> list[Row]:
    """All rows one after the other, without keeping parts; a quick run takes the smallest set and a few methods."""
    selection = _QUICK if quick else Selection(seed=seed)
    return [row for part in cells(selection) if not part.missing for row in part.run()]


EXPERIMENTS = (
    Experiment(
        id="one-round",
        title="one round, pooled rows and peers on the same files",
        source="ours",
        datasets=tuple(name for name in SETS if name != "breast_cancer"),
        protocol=(
            "Sets with their own test rows (digits and breast cancer: a fixed stratified quarter); of the largest a "
            "stratified part of 12,000 training rows, the same for every seed (--rows lifts it), as each line says. "
            f"Rows go to 20 sites by Dirichlet label skew 0.5, and to 100 by 0.1 where each would have 50 rows on "
            f"average; no site has fewer than 5. {REPETITIONS} seeds draw the sites and what else is random; a method "
            "that depends on neither is run once. Ours have all defaults and the columns as they are in the file. All "
            "others are given columns of tables standardised, and entries of images and embeddings in one unit, by "
            "statistics of the training rows. Pooled methods and peers are tuned by three-fold cross-validation on "
            "training rows (pooled ones, quadratic heads and FisherMix on at most 4,000 of them; DeepAFL by one fold), "
            "then fitted on all. A grid grows where its optimum lies on an edge, up to what the setting allows; "
            "boosting stops at 100 trees a class on sets of more than 64 columns, at 400 on others. Peers in one round "
            "are computed from sums over the sites, so the spread changes nothing but the last bits. They may tune on "
            "pooled rows, which no federation of one round could do. DeepAFL exchanges twice a layer and is no method "
            "of one round. FedAvg averages a network with 128 hidden units after 1, 10 and 100 rounds of one local "
            "epoch; its rate is the best of its grid on training rows after five rounds."
        ),
        run=run,
        parts=cells,
        tables=one_round_tables,
    ),
)
