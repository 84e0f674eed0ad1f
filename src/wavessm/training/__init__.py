"""Stage 8: training. Recipes, the Lightning module, run folders; read recipes, loader, module, run in this order."""
