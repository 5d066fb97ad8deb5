"""`make bench`: what a review costs, and what the enforcer does."""

from tests.bench.enforcer import bench_enforcer
from tests.bench.reviews import bench_reviews

bench_reviews()
bench_enforcer()
