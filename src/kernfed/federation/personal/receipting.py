"""What receipts say of personal models: sites keep nothing for them."""

from kernfed.site.receipts import ReceiptBook

BOOK = ReceiptBook(elsewhere=("weights of sites in each other's personal models",))
