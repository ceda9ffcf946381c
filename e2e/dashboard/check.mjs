// Holds a dashboard to Grafana's own types: writes it as a TypeScript literal, each panel under the options of its kind, for tsc.
// Usage: node check.mjs DASHBOARD.json > check.ts
import { readFileSync } from 'node:fs';

const dashboard = JSON.parse(readFileSync(process.argv[2], 'utf8'));
const kinds = {
  bargauge: ['BarGauge', 'bargauge', false],
  stat: ['Stat', 'stat', false],
  'state-timeline': ['StateTimeline', 'statetimeline', true],
  table: ['Table', 'table', false],
  timeseries: ['TimeSeries', 'timeseries', true],
};
const lines = ["import type { Dashboard, RowPanel, Panel, TableFieldOptions } from '@grafana/schema';"];
for (const [name, folder] of Object.values(kinds)) {
  lines.push(`import type * as ${name} from '@grafana/schema/dist/esm/raw/composable/${folder}/panelcfg/x/${name}PanelCfg_types.gen';`);
}
// JSON has the words of an enum, not the enum.
lines.push(`
type Plain<T> = T extends string ? \`\${T}\`
  : T extends number ? (\`\${T}\` extends \`\${infer N extends number}\` ? N : never)
  : T extends (infer U)[] ? Plain<U>[]
  : T extends object ? { [K in keyof T]: Plain<T[K]> }
  : T;`);
for (const panel of dashboard.panels) {
  const literal = JSON.stringify(panel);
  if (panel.type === 'row') {
    lines.push(`export const panel${panel.id}: Plain<RowPanel> = ${literal};`);
    continue;
  }
  const kind = kinds[panel.type];
  if (!kind) throw new Error(`panel ${panel.id}: no types are chosen for "${panel.type}"`);
  const custom = kind[2] ? `${kind[0]}.FieldConfig` : panel.type === 'table' ? 'Partial<TableFieldOptions>' : 'Record<string, never>';
  lines.push(`export const panel${panel.id}: Plain<Panel> = ${literal};`);
  lines.push(`export const options${panel.id}: Plain<${kind[0]}.Options> = ${JSON.stringify(panel.options)};`);
  lines.push(`export const custom${panel.id}: Plain<${custom}> = ${JSON.stringify(panel.fieldConfig.defaults.custom ?? {})};`);
}
lines.push(`export const dashboard: Plain<Omit<Dashboard, 'panels'>> = ${JSON.stringify({ ...dashboard, panels: undefined })};`);
console.log(lines.join('\n'));
