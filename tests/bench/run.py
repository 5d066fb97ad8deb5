"""`make bench`: what a review costs, and what the enforcer does."""

from enforcer import bench_enforcer
from reviews import bench_reviews

bench_reviews()
bench_enforcer()
