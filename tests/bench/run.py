"""`make bench`: what a review costs, what a list costs, and what the enforcer does."""

from tests.bench.enforcer import bench_enforcer
from tests.bench.lists import bench_lists
from tests.bench.reviews import bench_reviews

bench_reviews()
bench_lists()
bench_enforcer()
