"""The old home of `wavessm.record`, which training shares now."""

from wavessm.record import provenance as provenance
from wavessm.record import pyplot as pyplot
from wavessm.record import write_csv as write_csv
