import react from "@vitejs/plugin-react";
import { fileURLToPath } from "node:url";
import { defineConfig } from "vitest/config";

const gateway = process.env.GANTRY_CONSOLE_GATEWAY ?? "http://127.0.0.1:8080";

const SHARING_PAGES = 4;

export default defineConfig({
  base: "/console/",
  plugins: [react()],
  resolve: { alias: { "@": fileURLToPath(new URL("./src", import.meta.url)) } },
  build: {
    outDir: "../services/gateway/console",
    emptyOutDir: true,
    target: "es2022",
    cssTarget: ["chrome123", "firefox120", "safari17.5"],
    // The policy of the gateway allows no data: scripts and no inline ones; small assets stay files.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    chunkSizeWarningLimit: 700,
    // Parts that several pages use are one file. As thirty files of a few hundred bytes they cost a page more round trips
    // than all its data, six at a time.
    rolldownOptions: { output: { codeSplitting: { groups: [{ name: "shared", minShareCount: SHARING_PAGES }] } } },
  },
  // `npm run dev` shows the console of the sources over a gateway that runs already.
  server: { proxy: { "/v1": { target: gateway, ws: true }, "/openapi.json": gateway, "/livez": gateway } },
  test: {
    include: ["src/**/*.test.{ts,tsx}"],
    setupFiles: ["src/testing/setup.ts"],
    restoreMocks: true,
    testTimeout: 30_000,
  },
});
