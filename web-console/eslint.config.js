import { readdirSync } from "node:fs";
import importX from "eslint-plugin-import-x";
import reactHooks from "eslint-plugin-react-hooks";
import tseslint from "typescript-eslint";

const features = readdirSync(new URL("./src/features", import.meta.url));
// Each layer may use those after it: routes › features › ui › models › api | live.
const layers = ["routes", "features", "ui", "models"];
const upward = layers.flatMap((layer, at) =>
  ["./src/api", "./src/live", ...layers.slice(at + 1).map((lower) => `./src/${lower}`)].map((target) => ({
    target,
    from: `./src/${layer}`,
    message: `${target} is below ${layer}: routes › features › ui › models › api`,
  })),
);
const sideways = features.map((feature) => ({
  target: `./src/features/${feature}`,
  from: "./src/features",
  except: [`./${feature}`],
  message: "a feature never imports another: move what both need to models, api or ui",
}));

export default tseslint.config(
  { ignores: ["src/api/contract.d.ts", "node_modules"] },
  ...tseslint.configs.strict,
  ...tseslint.configs.stylistic,
  reactHooks.configs.flat["recommended-latest"],
  {
    plugins: { "import-x": importX },
    settings: {
      "import-x/resolver-next": [
        importX.createNodeResolver({ extensions: [".ts", ".tsx", ".d.ts"], tsconfig: { configFile: "tsconfig.json" } }),
      ],
    },
    rules: {
      "import-x/no-restricted-paths": ["error", { zones: [...upward, ...sideways] }],
      "max-lines": ["error", 400],
      "no-console": "error",
      "@typescript-eslint/consistent-type-definitions": ["error", "interface"],
      "@typescript-eslint/no-unused-vars": ["error", { argsIgnorePattern: "^_" }],
    },
  },
  {
    // One request function and one WebSocket client: components never call the network.
    files: ["src/**/*.{ts,tsx}"],
    ignores: ["src/api/request.ts", "src/live/**", "src/testing/**", "src/**/*.test.*"],
    rules: { "no-restricted-globals": ["error", "fetch", "WebSocket", "XMLHttpRequest", "EventSource"] },
  },
);
