"""What is known of each named data set, and of each file that a user may bring: origin, sizes, arrays."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CatalogEntry:
    """One data set: ``origin`` says where to obtain it, ``largest`` is the top of its range of pixels."""

    file: str
    sha256: str
    origin: str
    train: tuple[int, ...]
    test: tuple[int, ...]
    n_classes: int
    dtype: str = "uint8"
    largest: float | None = None
    class_names: tuple[str, ...] | None = None
    extra: str = ""

    @property
    def arrays(self) -> str:
        """The arrays that the file holds, for a message."""
        return (
            f"x_train {self.train} {self.dtype}, y_train {self.train[:1]} uint8, "
            f"x_test {self.test} {self.dtype}, y_test {self.test[:1]} uint8{self.extra}"
        )


ENTRIES = {
    "mnist": CatalogEntry(
        "mnist.npz",
        "06af5dfe73b70e3bc1c36439982b18a8d76803db9b544f6fdf838a37fbb01b64",
        "MNIST handwritten digits by Y. LeCun and C. Cortes",
        (60000, 28, 28),
        (10000, 28, 28),
        10,
        largest=255.0,
    ),
    "fashion_mnist": CatalogEntry(
        "fashion_mnist.npz",
        "5b6d2c4c694a91887af8ab7d039c04f80af3c29378d731c93a538d2e831aa469",
        "Fashion-MNIST by Zalando Research, MIT licence",
        (60000, 28, 28),
        (10000, 28, 28),
        10,
        largest=255.0,
        class_names=(
            "T-shirt/top",
            "Trouser",
            "Pullover",
            "Dress",
            "Coat",
            "Sandal",
            "Shirt",
            "Sneaker",
            "Bag",
            "Ankle boot",
        ),
    ),
    "dna": CatalogEntry(
        "dna.npz",
        "11b345cee1b97eb9d3402b117b8e8341d8c9669e334a165113ecca03734a05df",
        "StatLog DNA (splice junctions), 180 binary features, also in the R package mlbench",
        (2000, 180),
        (1186, 180),
        3,
    ),
    "letter": CatalogEntry(
        "letter.npz",
        "6629abe62f0d14f329a084ec358552684a47e35cb7f35ad2d1ee80edb3d002f7",
        "Letter Recognition of the UCI Machine Learning Repository, first 15000 rows for training",
        (15000, 16),
        (5000, 16),
        26,
    ),
    "pendigits": CatalogEntry(
        "pendigits.npz",
        "26b41711b98c096beaee256488b1797f147971877843cde014f6968a9ba7b991",
        "Pen-Based Recognition of Handwritten Digits of the UCI Machine Learning Repository",
        (7494, 16),
        (3498, 16),
        10,
    ),
    "satimage": CatalogEntry(
        "satimage.npz",
        "894c47789c2a2261e435dd0ffe65d6bf86f58282d1318920b0168bfe6f573745",
        "StatLog Landsat Satellite of the UCI Machine Learning Repository, also in the R package mlbench",
        (4435, 36),
        (2000, 36),
        6,
    ),
    "shuttle": CatalogEntry(
        "shuttle.npz",
        "4b62bbea8f9208a7ee1c1abf54ef7a2b6b8e501b66baf2e9b9460b96b0f9144e",
        "StatLog Shuttle of the UCI Machine Learning Repository",
        (43500, 9),
        (14500, 9),
        7,
        dtype="int16",
    ),
    "usps": CatalogEntry(
        "usps.npz",
        "7f8b726f18803d07d6ca634729649556bb6ccc8ad71e1f7b4a678f6f4d259d45",
        "USPS handwritten digits, 16 x 16 pixels scaled to 0 .. 1",
        (7291, 256),
        (2007, 256),
        10,
        dtype="float16",
        largest=1.0,
    ),
    "20ng_minilm": CatalogEntry(
        "20ng_minilm.npz",
        "211e39a8a599b14f3bf9fba05127f1d2fe5695a7c534d29670750c32e9ef9817",
        "20 Newsgroups (bydate), whole posts embedded by the sentence model all-MiniLM-L6-v2, unit norm",
        (11314, 384),
        (7532, 384),
        20,
        dtype="float16",
    ),
    "cifar10_efflite0": CatalogEntry(
        "cifar10_efflite0.npz",
        "cd529a40523172a5e1b7014ac5e133aa8aa2e3365bfdbb6eeb25e9fcd447c3f9",
        "CIFAR-10 by A. Krizhevsky, pooled features of EfficientNet-Lite0 at 160 pixels, stored as x / scale",
        (50000, 1280),
        (10000, 1280),
        10,
        extra=", scale (1280,) float32",
    ),
}

# Office-Caltech-10 has no training and test rows: its arrays are FEATURES_x_DOMAIN and FEATURES_y_DOMAIN.
OFFICE = "office_caltech10"
OFFICE_FILE = "office_caltech10.npz"
OFFICE_SHA256 = "2e3d9a0fc973bc80255c85a2ed4186025b9585eefe6e5d6049efb22a97aa48f7"
OFFICE_ORIGIN = "Office-Caltech-10, the classes that the Office and Caltech-256 images share"
OFFICE_FEATURES = {
    "efflite0": ("amazon", "caltech10", "dslr", "webcam"),
    "surf": ("amazon", "caltech10", "dslr", "webcam"),
    "googlenet1024": ("amazon", "dslr", "webcam"),
}


@dataclass(frozen=True)
class Brought:
    """A file that a user may bring for an experiment: what the paper's rows are, and where they come from.

    ``n_train`` and ``n_test`` are None where the paper does not say. ``groups`` says what group_train names, if the
    file must have it.
    """

    origin: str
    features: str
    n_features: int
    n_classes: int
    n_train: int | None = None
    n_test: int | None = None
    groups: str = ""

    @property
    def arrays(self) -> str:
        """The arrays that the file must hold, for a message."""
        n, m = self.n_train or "n", self.n_test or "m"
        grouped = f", group_train ({n},) text or integers, the {self.groups} of each row" if self.groups else ""
        return (
            f"x_train ({n}, {self.n_features}) numbers, y_train ({n},) integers 0 .. {self.n_classes - 1}, "
            f"x_test ({m}, {self.n_features}), y_test ({m},){grouped}; columns: {self.features}"
        )


_NEWSGROUPS = "20 Newsgroups by K. Lang and J. Rennie, the bydate version, of qwone.com/~jason/20Newsgroups"
_XGLUE = "news classification (NC) of XGLUE by Y. Liang and others, of microsoft.github.io/XGLUE, five languages"
_CIFAR = "by A. Krizhevsky, of www.cs.toronto.edu/~kriz/cifar.html"
_GROCERIES = (
    "Freiburg Groceries by P. Jund, N. Abdo, A. Eitel and W. Burgard, of "
    "aisdatasets.informatik.uni-freiburg.de/freiburg_groceries_dataset"
)
_RESNET = "avg_pool of a pretrained ResNet-50, as it comes"
_FC6 = "fc6 of AlexNet and of VGG-16 side by side, each column scaled to -1 .. 1"
_DISTILUSE = "distiluse-base-multilingual-cased-v2"
_PARAPHRASE = "paraphrase-multilingual"


def _xglue(encoders: str, width: int) -> Brought:
    return Brought(_XGLUE, f"embeddings by {encoders}, as they come", width, 10, 50000, 50000, "language")


#: Files by name, without the ending npz.
BROUGHT = {
    "20ng_mxbai": Brought(_NEWSGROUPS, "embeddings by mxbai-embed-large, as they come", 1024, 20, 11314, 7532),
    "xglue_nc_distiluse": _xglue(_DISTILUSE, 512),
    "xglue_nc_paraphrase": _xglue(_PARAPHRASE, 768),
    "xglue_nc_distiluse_paraphrase": _xglue(f"{_DISTILUSE} and {_PARAPHRASE} side by side", 1280),
    "cifar10_resnet50": Brought(f"CIFAR-10 {_CIFAR}", _RESNET, 2048, 10, 50000, 10000),
    "cifar100_resnet50": Brought(f"CIFAR-100 {_CIFAR}", _RESNET, 2048, 100, 50000, 10000),
    "freiburg_groceries_resnet50": Brought(_GROCERIES, _RESNET, 2048, 25, 3929, 1018),
    **{
        f"freiburg_groceries_resnet50_{split}": Brought(f"{_GROCERIES}, its split {split}", _RESNET, 2048, 25)
        for split in range(1, 6)
    },
    **{
        f"freiburg_groceries_fc6_{split}": Brought(f"{_GROCERIES}, its split {split}", _FC6, 8192, 25)
        for split in range(1, 6)
    },
    "heart_rate_intervals": Brought(
        "heart rate intervals with stress scores of M. Kumar and others (2021), IEEE Transactions on Fuzzy Systems "
        "29(12); ask the authors",
        "R-R intervals, the present one and 216 before, scaled to 0 .. 1",
        217,
        2,
    ),
    "sensorless": Brought(
        "Sensorless Drive Diagnosis of the UCI Machine Learning Repository, of archive.ics.uci.edu",
        "the 48 features, as they come",
        48,
        11,
    ),
    "femnist": Brought(
        "FEMNIST of LEAF by S. Caldas and others, of leaf.cmu.edu",
        "28 x 28 pixels, 0 .. 1",
        784,
        62,
        groups="writer",
    ),
}
