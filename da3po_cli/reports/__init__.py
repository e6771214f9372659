"""What runs and ablations have measured: tables, plots and a self-contained HTML page. Reads run directories only."""
