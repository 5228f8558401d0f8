import neostandard, { plugins } from 'neostandard'

export default [
  ...neostandard({ ts: true, ignores: ['dist/**', '.tap/**'] }),
  {
    files: ['lib/**/*.ts'],
    plugins: { '@typescript-eslint': plugins['typescript-eslint'].plugin },
    languageOptions: { parserOptions: { projectService: true } },
    rules: {
      '@typescript-eslint/no-floating-promises': 'error',
      'no-void': ['error', { allowAsStatement: true }]
    }
  }
]
