"""Running methods on scenarios: recipes, runs that survive crashes, results, comparisons."""
