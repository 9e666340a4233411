"""Optional app: drawings of dependent tasks as SVG and as Mermaid flowcharts."""
