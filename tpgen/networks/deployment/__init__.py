"""Networks for use without tpgen."""
