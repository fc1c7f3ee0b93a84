"""What is known of each named data set: file, digest, origin, sizes, pixel range."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
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
    "mnist": Entry(
        "mnist.npz",
        "06af5dfe73b70e3bc1c36439982b18a8d76803db9b544f6fdf838a37fbb01b64",
        "MNIST handwritten digits by Y. LeCun and C. Cortes",
        (60000, 28, 28),
        (10000, 28, 28),
        10,
        largest=255.0,
    ),
    "fashion_mnist": Entry(
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
    "dna": Entry(
        "dna.npz",
        "11b345cee1b97eb9d3402b117b8e8341d8c9669e334a165113ecca03734a05df",
        "StatLog DNA (splice junctions), 180 binary features, also in the R package mlbench",
        (2000, 180),
        (1186, 180),
        3,
    ),
    "letter": Entry(
        "letter.npz",
        "6629abe62f0d14f329a084ec358552684a47e35cb7f35ad2d1ee80edb3d002f7",
        "Letter Recognition of the UCI Machine Learning Repository, first 15000 rows for training",
        (15000, 16),
        (5000, 16),
        26,
    ),
    "pendigits": Entry(
        "pendigits.npz",
        "26b41711b98c096beaee256488b1797f147971877843cde014f6968a9ba7b991",
        "Pen-Based Recognition of Handwritten Digits of the UCI Machine Learning Repository",
        (7494, 16),
        (3498, 16),
        10,
    ),
    "satimage": Entry(
        "satimage.npz",
        "894c47789c2a2261e435dd0ffe65d6bf86f58282d1318920b0168bfe6f573745",
        "StatLog Landsat Satellite of the UCI Machine Learning Repository, also in the R package mlbench",
        (4435, 36),
        (2000, 36),
        6,
    ),
    "shuttle": Entry(
        "shuttle.npz",
        "4b62bbea8f9208a7ee1c1abf54ef7a2b6b8e501b66baf2e9b9460b96b0f9144e",
        "StatLog Shuttle of the UCI Machine Learning Repository",
        (43500, 9),
        (14500, 9),
        7,
        dtype="int16",
    ),
    "usps": Entry(
        "usps.npz",
        "7f8b726f18803d07d6ca634729649556bb6ccc8ad71e1f7b4a678f6f4d259d45",
        "USPS handwritten digits, 16 x 16 pixels scaled to 0 .. 1",
        (7291, 256),
        (2007, 256),
        10,
        dtype="float16",
        largest=1.0,
    ),
    "20ng_minilm": Entry(
        "20ng_minilm.npz",
        "211e39a8a599b14f3bf9fba05127f1d2fe5695a7c534d29670750c32e9ef9817",
        "20 Newsgroups (bydate), whole posts embedded by the sentence model all-MiniLM-L6-v2, unit norm",
        (11314, 384),
        (7532, 384),
        20,
        dtype="float16",
    ),
    "cifar10_efflite0": Entry(
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
