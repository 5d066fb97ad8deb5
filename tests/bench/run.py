"""`make bench`: what a review costs, what attacks cost others, and what the enforcer does."""

from tests.bench.attacks import bench_attacks
from tests.bench.enforcer import bench_enforcer
from tests.bench.reviews import bench_reviews

bench_reviews()
bench_attacks()
bench_enforcer()
