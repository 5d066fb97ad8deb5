"""`make bench`: what reviews, attacks and lists cost, and what the enforcer does."""

from tests.bench.attacks import bench_attacks
from tests.bench.enforcer import bench_enforcer
from tests.bench.lists import bench_lists
from tests.bench.placement import bench_placement
from tests.bench.reviews import bench_reviews

bench_reviews()
bench_attacks()
bench_lists()
bench_placement()
bench_enforcer()
