import { lazy, Suspense, type ComponentProps } from "react";
import { loadCode } from "@/api/load-code";
import type { Chart } from "./chart";
import { Loading } from "./page-frame";

const Loaded = lazy(() => loadCode(() => import("./chart")).then((found) => ({ default: found.Chart })));

/** A chart, whose code is as large as all the rest: it comes when the first chart is shown. */
export function LazyChart(props: ComponentProps<typeof Chart>) {
  return (
    <Suspense fallback={<Loading />}>
      <Loaded {...props} />
    </Suspense>
  );
}
