import { useComputedColorScheme } from "@mantine/core";
import { BarChart, LineChart } from "echarts/charts";
import {
  AriaComponent,
  DataZoomComponent,
  GridComponent,
  LegendComponent,
  MarkLineComponent,
  TooltipComponent,
} from "echarts/components";
import * as echarts from "echarts/core";
import { SVGRenderer } from "echarts/renderers";
import { useEffect, useRef } from "react";
import { useTranslation } from "react-i18next";

echarts.use([
  AriaComponent,
  BarChart,
  DataZoomComponent,
  GridComponent,
  LegendComponent,
  LineChart,
  MarkLineComponent,
  SVGRenderer,
  TooltipComponent,
]);

const WIDTH_PX = 800;

/**
 * A chart of ECharts; pages load it lazily, since it is as large as all the rest. `label` says in words what it shows. Use
 * null for unknown values: a line has a gap there.
 */
export function Chart({
  label,
  option,
  height = 260,
}: {
  label: string;
  option: echarts.EChartsCoreOption;
  height?: number;
}) {
  const element = useRef<HTMLDivElement>(null);
  const chart = useRef<echarts.ECharts | null>(null);
  const { language } = useTranslation().i18n;
  const scheme = useComputedColorScheme("light");
  useEffect(() => {
    const target = element.current;
    if (target === null) return undefined;
    const width = target.clientWidth || WIDTH_PX;
    // Otherwise the names of months are in the language that the page had when this code was loaded.
    const locale = language.toUpperCase();
    const made = echarts.init(target, scheme === "dark" ? "dark" : null, { renderer: "svg", width, height, locale });
    chart.current = made;
    const observer = new ResizeObserver(() => {
      if (target.clientWidth > 0) made.resize({ width: target.clientWidth, height });
    });
    observer.observe(target);
    return () => {
      observer.disconnect();
      made.dispose();
      chart.current = null;
    };
  }, [scheme, language, height]);
  useEffect(() => {
    chart.current?.setOption({ backgroundColor: "transparent", animation: false, ...option }, { notMerge: true });
  }, [option, scheme, language, height]);
  return <div ref={element} role="img" aria-label={label} style={{ width: "100%", height }} />;
}
